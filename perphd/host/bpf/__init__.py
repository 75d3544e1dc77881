"""Plain bpf(2): the system call with its errors, and an assembler. No library, headers or compiler is needed."""

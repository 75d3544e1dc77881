"""Plain bpf(2): the system call with its errors, and an assembler. Needs no library, headers or compiler."""

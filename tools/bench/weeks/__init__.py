"""Is the report right? Short simulated weeks, lived once in observe and once in enforce, from the same seed."""

"""The rules, and nothing but the rules: values in, values out, no clock, no chance, no I/O."""

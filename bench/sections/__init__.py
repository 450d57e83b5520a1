"""The sections of the table: what each measures, as lines with their floors."""

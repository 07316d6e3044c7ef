"""`TrainingArguments`: its fields, their checks, and the command line."""

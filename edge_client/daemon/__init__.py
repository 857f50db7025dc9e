"""Behind the local API: texts of several clients at once, over one draft model and some verifiers."""

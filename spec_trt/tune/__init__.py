"""Tree tuning: the static tree of a draft head that pays best on some prompts and a machine."""

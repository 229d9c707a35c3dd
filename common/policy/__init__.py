"""What is allowed: rules, decisions, hooks."""

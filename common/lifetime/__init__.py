"""How work ends: the abort tree and the clean-up registry."""

"""What a model is shown: system prompt sections and token estimates."""

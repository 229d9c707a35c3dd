"""What every process shares. Imports nothing of coordinator, workers or ops."""

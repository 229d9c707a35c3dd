"""What a plain program does instead: each file stands alone and imports nothing of this project."""

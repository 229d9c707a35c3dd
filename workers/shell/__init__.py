"""Commands: process groups, PTY supervision, bounded output."""

"""The client's sub-commands, loaded one by one when they are used."""

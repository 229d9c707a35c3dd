"""Everyday arithmetic of a parcel depot."""

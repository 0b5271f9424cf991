"""Scene and sensor catalogs that ship with Bandstream (YAML files beside this one)."""

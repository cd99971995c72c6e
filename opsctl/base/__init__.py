"""What every package may import: errors, records, ports, units, node lists."""

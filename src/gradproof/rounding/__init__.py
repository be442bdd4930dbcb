"""What floating-point accumulation can lose: bounds, certificates, witnesses, for any number of micro-batches."""

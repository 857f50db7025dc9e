"""Files beside draft models: priors."""

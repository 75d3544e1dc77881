"""Makes the profiles of classes that ship in profiles/priors."""

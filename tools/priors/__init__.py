"""Creates the class profiles that ship in profiles/priors."""

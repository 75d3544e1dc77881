"""Do trials tell the truth? Hundreds of them where the true effect is known."""

"""The control API on its Unix socket, its metrics, and the perphctl client."""

"""The long-running applications of the lab, one module each, behind one interface."""

"""How well the detector's statistics do: false alarms a day, and samples until a shift is found."""

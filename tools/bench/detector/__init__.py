"""Performance of the detector's statistics: false alarms per day, and samples until a shift is found."""

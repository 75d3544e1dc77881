"""History of jobs: what earlier jobs with the same features took, and which feature tells most (3sigmaPredict).

``features`` turns a job into feature values, ``experts`` keeps one record per feature value and scores its estimators,
``store`` keeps the records in an SQLite file.
"""

"""History of jobs: usage of earlier jobs with the same features, and the most predictive feature (3sigmaPredict).

``features`` turns a job into feature values, ``experts`` keeps one record per feature value and scores its
estimators, ``store`` keeps the records in an SQLite file.
"""

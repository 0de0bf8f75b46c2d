"""Lasting state: tables (SQLite or PostgreSQL), and the artifact store for large payloads.

database        opens a database; `tables` are its tables, `migrations` their versions
artifacts       files below one root, each written whole or not at all
step_records    the record of a run: a row for each step of a trajectory, and a row for each training step
rows            the rows that a learner trains on
images          screenshots by content hash
manifests       the files of a folder with their checksums; `weight_folders` folders that are named when they are whole
tensor_files    safetensors without torch; `model_config` and `model_digest` what a model folder computes
"""

"""What must last: tables and migrations (SQLite or PostgreSQL), and the artifact store for large payloads.

database       opens it, with SQLite's locking and the schema's version; `tables` all of them, `migrations` how they grew
artifacts      files below one root, each written whole or not at all
step_records   the record of a run, a row a step of a trajectory, and a row a training step
rows           what a learner trains on
images         screenshots by content hash
manifests      what a folder should hold; `tensor_files` safetensors without torch, `model_digest` what a folder computes
backup         a copy of all that, and its way back
"""

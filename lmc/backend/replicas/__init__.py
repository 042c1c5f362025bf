"""Replicas: several engines of one model, a process each, behind one `Backend`.

program ──► Replicas ──placement──► PipeBackend ══ pipe ══► replica's process: PipeServer ──► Engine
"""

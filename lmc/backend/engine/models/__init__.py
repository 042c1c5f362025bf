"""Models: from files to layers, and what they compute."""

"""The language, its interpreter, and the abstract evaluation of programs."""

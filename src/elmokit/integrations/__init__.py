"""ELMo in other libraries; each needs an extra of elmokit."""

"""The stages of a workflow, one module each; `chain` holds them in their order once they are fitted."""

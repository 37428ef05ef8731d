"""The worked example of docs/fine-tuning.md: mails, and a transformer that others have trained."""

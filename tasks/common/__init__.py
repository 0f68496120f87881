"""What several problems share."""

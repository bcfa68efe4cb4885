"""Small models that are wrong to export in one way each, beside twins that are right."""

"""The shapes of the documents that gradproof prints or reads; their JSON Schemas are made from them."""

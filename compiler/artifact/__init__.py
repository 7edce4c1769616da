"""The artifact file: layout, writer, reader."""

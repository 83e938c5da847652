package incident

// Key is the incident's id, under which it lies in its bucket.
func (i Incident) Key() string { return i.ID }

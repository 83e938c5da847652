package incident

// Key is the incident's id, under which it lies in its bucket.
func (i Incident) Key() string { return i.ID }

// Approval is what a watch for people's answers reads of a record. The engine itself writes nearly every change that such a watch shows, so
// no more of it is decoded.
type Approval struct {
	ID   string `json:"id"`
	Text string `json:"approval"`
}

// Key is the key under which the record is stored.
func (a Approval) Key() string { return a.ID }

// Remedy says how a person can end what the incident waits for; empty if nobody can or needs to.
func (i Incident) Remedy() string { return i.remedy() }

package kernel

// settle says what is due of the events that one is about to clear: said after
// it, their counts would look like the condition come back.
func (f *Folder) settle(b *burst, kind Kind, cleared int) {
	for _, en := range b.entries {
		if en.dirty && (cleared == recoveryXid || en.key.kind == kind && en.key.code == cleared) {
			f.send(en)
		}
	}
}

// undone reports whether something since the entry's last event ended its
// condition, or brought back the one that it ended.
func (b *burst) undone(en *entry) bool {
	if !b.clears {
		return false
	}
	for _, o := range b.entries {
		if o.seen > en.seen && o.key.kind == en.key.kind && (o.out.Verdict.Clears == en.key.code || en.out.Verdict.Clears == o.key.code) {
			return true
		}
	}
	return false
}

package event

import "time"

// Message is an event in its encoded form, with what routes it. An event is encoded once, where it is found, and travels as a message from
// there on: through the pipeline, the spool and the condition that it opens. Its fields are those of the encoded event.
type Message struct {
	ID     string
	Source string
	Type   Type
	Time   time.Time
	Node   string // of its target; empty if it names none
	Raw    []byte // the structured JSON form
}

// NewMessage encodes an event.
func NewMessage(e Event) (Message, error) {
	raw, err := Encode(e)
	if err != nil {
		return Message{}, err
	}
	return message(e, raw), nil
}

// ReadMessage checks an encoded event that comes from outside the process, and reads what routes it.
func ReadMessage(raw []byte) (Message, error) {
	e, err := Decode(raw)
	if err != nil {
		return Message{}, err
	}
	return message(e, raw), nil
}

func message(e Event, raw []byte) Message {
	return Message{ID: e.ID, Source: e.Source, Type: e.Type, Time: e.Time, Node: e.Data.Target.Node, Raw: raw}
}

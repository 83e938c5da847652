// Package semconv holds the names of attributes, metrics and events, as OpenTelemetry's semantic conventions and the components'
// metadata.yaml spell them. It promises that a name is spelled once: what reads a name and what writes it use the same constant, and a
// typing mistake does not compile. It imports nothing. metadata.yaml describes what each name means.
package semconv

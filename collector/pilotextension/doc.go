// Package pilotextension is the node agent's command side: it answers the bus's commands with what the ranks of this node say and
// do, and keeps each launcher in line with the bucket of attempts.
//
// It promises that it holds no state of a round: a replaced agent picks it up, because every message is idempotent by its
// request and fenced by its attempt; that a launcher's place comes from its pod's UID, as its directory's path says it,
// and never from what the launcher claims; and that without NATS everything goes on: launchers that are known to no record
// are told to be alone once the bus has answered, or 1.5 s after their hello without it.
//
// It decides nothing. Which step to hold at, who restarts and where is the remediator's to say.
package pilotextension

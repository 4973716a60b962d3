package journal

// ID is a MESSAGE_ID: fixed for ever, listed in docs/reference.md and in the message catalog.
type ID string

// The events of the product.
const (
	Changed  ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b01"
	Progress ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b02"
	Notice   ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b03"
	Warning  ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b04"
	Done     ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b05"
	Failed   ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b06" // a retry may help
	Refused  ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b07" // a retry cannot help
	Held     ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b08" // somebody else holds the lock
	Canceled ID = "5f0c2a6be1f04b0e9f2f6d1a9c3e7b09" // stopped by systemd
)

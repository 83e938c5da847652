package kernel

import "bytes"

// phrase maps words of a line to the kind and case that rules know it by.
type phrase struct {
	words []byte
	kind  Kind
	is    string
}

var nvrmPhrases = []phrase{
	{[]byte("RmInitAdapter failed"), GPUInit, initFailed},
	{[]byte("RmInitAdapter: Cannot"), GPUInit, initFailed},
	{[]byte("rm_init_adapter failed"), GPUInit, initFailed},
	{[]byte("Cannot attach gpu"), GPUInit, initFailed},
	{[]byte("failed to wait for GFW_BOOT"), GPUInit, initFailed},
	{[]byte("cannot proceed with booting GSP"), GSP, gspFault},
	{[]byte("Received signal from GSP that"), GSP, gspFault},
	{[]byte("Rate limiting GSP RPC error prints"), GSP, gspFault},
	// knvlinkUpdatePostRxDetectLinkMask_IMPL, knvlinkDiscoverPostRxDetLinks_GH100 and their kin of other GPUs: the call goes to the GSP, and
	// the driver repeats it until the GPU is reset, so that nvidia-smi hangs.
	{[]byte("PostRxDet"), GSP, linkDetection},
}

const (
	initFailed = "adapter initialisation failed"
	gspFault   = "GSP firmware fault"

	linkDetection = "NVLink detection failed"
)

var aerPhrases = []phrase{
	{[]byte("AER: can't recover"), AER, "unrecovered"},
	{[]byte("AER: device recovery failed"), AER, "unrecovered"},
	{[]byte("severity=Corrected"), AER, "correctable"},
	{[]byte("severity=Correctable"), AER, "correctable"},
	{[]byte("severity=Uncorrected (Non-Fatal)"), AER, "uncorrected non-fatal"},
	{[]byte("severity=Uncorrectable (Non-Fatal)"), AER, "uncorrected non-fatal"},
	{[]byte("severity=Uncorrected (Fatal)"), AER, "uncorrected fatal"},
	{[]byte("severity=Uncorrectable (Fatal)"), AER, "uncorrected fatal"},
	{[]byte("Correctable error"), AER, "correctable"},
	{[]byte("Corrected error"), AER, "correctable"},
	{[]byte("Uncorrectable (Non-Fatal) error"), AER, "uncorrected non-fatal"},
	{[]byte("Uncorrected (Non-Fatal) error"), AER, "uncorrected non-fatal"},
	{[]byte("Uncorrectable (Fatal) error"), AER, "uncorrected fatal"},
	{[]byte("Uncorrected (Fatal) error"), AER, "uncorrected fatal"},
}

var mlx5Phrases = []phrase{
	{[]byte("Detected insufficient power"), MLX5, "slot power"},
	{[]byte("Cable unplugged"), MLX5, "cable"},
	{[]byte("Cable error"), MLX5, "cable"},
	{[]byte("Link down"), MLX5, "link down"},
	{[]byte("health compromised"), MLX5, "health"},
	{[]byte("assert_var"), MLX5, "health"},
	{[]byte("failed, status "), MLX5, "command failed"},
}

// nvrmSignal reads the driver's lines that carry no Xid.
func nvrmSignal(line, rest []byte, e *Event) Result {
	for i := range nvrmPhrases {
		if ph := &nvrmPhrases[i]; bytes.Contains(rest, ph.words) {
			e.reset(ph.kind, line)
			e.Case = ph.is
			e.PCI = anyAddress(rest)
			return IsEvent
		}
	}
	return Nothing
}

// aer reads "pcieport 0000:00:02.0: PCIe Bus Error: severity=…" and "… AER: …".
// The lines that follow one ("device [10de:…] error status", "[ 5] Surprise Down
// Error") say more of it and are nothing by themselves.
func aer(line []byte, e *Event) Result {
	space := bytes.IndexByte(line[:min(len(line), 32)], ' ')
	if space < 1 {
		return Nothing
	}
	a, rest, ok := address(line[space+1:])
	if !ok {
		return Nothing
	}
	rest, ok = bytes.CutPrefix(rest, []byte(": "))
	if !ok || !bytes.HasPrefix(rest, []byte("AER: ")) && !bytes.HasPrefix(rest, []byte("PCIe Bus Error: ")) {
		return Nothing
	}
	return signal(aerPhrases, a, line, rest, e)
}

// mlx5 reads the network adapter's lines that tell of power, cable or firmware.
func mlx5(line []byte, e *Event) Result {
	return signal(mlx5Phrases, anyAddress(line), line, line, e)
}

func signal(phrases []phrase, a Address, line, rest []byte, e *Event) Result {
	for i := range phrases {
		if ph := &phrases[i]; bytes.Contains(rest, ph.words) {
			e.reset(ph.kind, line)
			e.Case, e.PCI = ph.is, a
			return IsEvent
		}
	}
	return Nothing
}

// anyAddress finds the first PCI address in a line.
func anyAddress(b []byte) Address {
	for i := 0; i+10 <= len(b); {
		colon := bytes.IndexByte(b[i:], ':')
		if colon < 0 {
			break
		}
		at := i + colon
		// The domain's digits stand before the first colon.
		start := at
		for start > i && at-start < 8 && unhex(b[start-1]) >= 0 {
			start--
		}
		if a, _, ok := address(b[start:]); ok {
			return a
		}
		i = at + 1
	}
	return Address{}
}

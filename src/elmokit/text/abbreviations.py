"""Abbreviations in languages other than English, as alternatives of a regular expression."""

# Abbreviations that precede something, such as titles, "number" or "for example", so that no sentence ends after them.
INTRODUCING = (
    # German
    "Abb|Anm|Aufl|Bd|Bde|bzgl|bzw|ca|Dipl|Dr|ebd|evtl|exkl|gegr|ggf|Hr|Hrsg|Ing|inkl|insb|jew|Nr|Prof|sog|Tel|vgl|zzgl|"
    # French, Italian, Spanish, Portuguese
    "MM|Mme|Mlle|Mgr|Sig|Sigg|Dott|Avv|pag|pagg|cfr|Sr|Sra|Sres|Srta|Dra|Uds|Vds|pág|págs|núm|aprox|Exmo|Exma|"
    # Dutch, Danish, Norwegian, Swedish, Finnish
    "blz|dhr|mevr|drs|resp|evt|bijv|excl|incl|nr|tlf|jfr|dvs|esim|"
    # Polish, Czech, Slovak, Hungarian, Croatian, Turkish
    "np|tzw|tzn|prof|inż|mgr|dr|ul|św|např|popř|tj|tzv|npr|Doç|Yrd|"
    # Russian, Ukrainian, Bulgarian, Greek
    "ул|им|ім|вул|напр|проф|акад|доц|стр|рис|табл|σελ|βλ|"
    # several languages
    "Mr|Mrs|Ms|St|cf|fig|pp|vol|vols"
)
# Abbreviations within a sentence; at its end, some of them are ordinary words.
ABBREVIATIONS = (
    f"{INTRODUCING}|Abs|Abt|Chr|Fa|geb|Hbf|Jh|Jhd|lat|Mio|Mrd|nördl|röm|Std|Str|südl|usw|verh|zit|"
    "Cie|env|hab|apr|av|chap|éd|janv|févr|juill|sept|oct|nov|déc|ecc|Ud|Vd|etc|Ltda|Lda|"
    "enz|jl|kr|osv|mfl|kl|pga|milj|mrd|yms|itd|itp|godz|wyd|apod|atd|mj|stb|vb|vs|"
    "гг|вв|др|млн|млрд|тыс|руб|коп|см|ср|тт|обл|тис|грн|κλπ|κτλ|Jr|al|ed|eds|max|min|op"
)
# Abbreviations that keep their period at the end of a sentence, too.
ALWAYS_ABBREVIATIONS = "Dr|Prof|bzw|usw|vgl|etc|ecc|enz|osv|itd|itp|atd|apod|yms|млн|млрд|тыс|κλπ|κτλ"

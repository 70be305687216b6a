"""Abbreviations of languages other than English, as alternatives of a pattern."""

# Abbreviations of many languages that may stand inside a sentence; at its end some are whole words.
ABBREVIATIONS = (
    # German
    "Abb|Abs|Abt|Anm|Aufl|Bd|Bde|bes|bzgl|bzw|ca|Chr|Dipl|Dr|ebd|evtl|exkl|Fa|geb|gegr|ggf|Hbf|Hr|Hrsg|Ing|inkl|insb|Jh|"
    "Jhd|jew|lat|Mio|Mrd|nördl|Nr|Prof|röm|sog|Std|Str|südl|Tel|usw|verh|vgl|zit|zzgl|"
    # French, Italian, Spanish, Portuguese
    "MM|Mme|Mlle|Mgr|Cie|env|hab|apr|av|chap|éd|janv|févr|juill|sept|oct|nov|déc|Sig|Sigg|Dott|Avv|pag|pagg|ecc|sec|cfr|"
    "Sr|Sra|Sres|Srta|Dra|Ud|Uds|Vd|Vds|pág|págs|núm|aprox|etc|Exmo|Exma|Ltda|Lda|"
    # Dutch, Danish, Norwegian, Swedish, Finnish
    "blz|dhr|mevr|drs|resp|enz|evt|bijv|excl|incl|jl|nr|kr|osv|tlf|mfl|jfr|kl|dvs|pga|milj|esim|mm|mrd|ns|yms|"
    # Polish, Czech, Slovak, Hungarian, Croatian, Turkish
    "np|itd|itp|tzw|tzn|prof|inż|mgr|dr|godz|ul|św|wyd|apod|atd|např|mj|popř|tj|tzv|stb|npr|vb|vs|Doç|Yrd|"
    # Russian, Ukrainian, Bulgarian, Greek
    "гг|вв|др|ул|им|млн|млрд|тыс|руб|коп|см|ср|напр|проф|акад|доц|стр|рис|табл|тт|обл|тис|грн|вул|κλπ|κτλ|σελ|βλ|"
    # many
    "Jr|Mr|Mrs|Ms|No|St|al|cf|ed|eds|fig|max|min|op|pp|vol|vols"
)
# They keep their period at the end of a sentence too.
ALWAYS_ABBREVIATIONS = "Dr|Prof|bzw|usw|vgl|etc|ecc|enz|osv|itd|itp|atd|apod|yms|млн|млрд|тыс|κλπ|κτλ"

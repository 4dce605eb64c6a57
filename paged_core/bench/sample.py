"""A few prompts and sentence pairs, so that a benchmark can be tried without any data."""

TASKS: tuple[tuple[str, str], ...] = (
    ("Name three primary colours.", "The three primary colours are red, yellow and blue."),
    ("Write a short sentence about the sea.", "The grey sea rolled slowly against the harbour wall all night long."),
    ("Give a synonym of happy.", "Joyful."),
    (
        "Explain why the sky is blue.",
        "Air scatters short waves of light more than long ones, so blue reaches us from everywhere.",
    ),
    ("Turn this into a question.\nThe train leaves at noon.", "Does the train leave at noon?"),
    (
        "List two uses of a hammer.",
        "A hammer drives nails into wood, and its claw pulls them out again when they are bent.",
    ),
)
QUESTIONS: tuple[str, ...] = (
    "Write a letter to a neighbour who plays the trumpet every night. Be polite but clear.",
    "A farmer has seventeen sheep, and all but nine run away. How many are left? Explain each step of your reasoning.",
    "Describe the water cycle to a child of eight, with one example that can be seen in every kitchen.",
    "Compare paper books and electronic books for a long journey by train. Name two advantages of each.",
)
PAIRS: tuple[tuple[str, str], ...] = (
    ("The house on the hill is very old.", "Das Haus auf dem Hügel ist sehr alt."),
    ("We will meet in front of the station at eight.", "Wir treffen uns um acht vor dem Bahnhof."),
    ("She has read this book three times.", "Sie hat dieses Buch dreimal gelesen."),
    ("The committee will vote on the proposal tomorrow.", "Der Ausschuss stimmt morgen über den Vorschlag ab."),
    ("It rained so hard that the river rose.", "Es regnete so stark, dass der Fluss stieg."),
    ("Nobody knows who built the bridge.", "Niemand weiß, wer die Brücke gebaut hat."),
    ("The children are playing in the garden.", "Die Kinder spielen im Garten."),
    ("Please close the window before you leave.", "Bitte schließen Sie das Fenster, bevor Sie gehen."),
    ("The new law applies to all member states.", "Das neue Gesetz gilt für alle Mitgliedstaaten."),
    ("He forgot his umbrella in the café.", "Er hat seinen Schirm im Café vergessen."),
)
TEXT = (
    "The harbour was quiet before sunrise. Two boats had come in during the night, and their nets hung over the rails. "
    "An old woman swept the steps of the fish market, slowly, as she had done every morning for forty years. When the "
    "bell of the church rang six, the first carts arrived from the village, and within minutes the square was full of "
    "voices. Prices were named, refused and named again; somebody laughed, somebody dropped a basket of mussels, and a "
    "dog ran off with a herring. By eight o'clock all was sold, the carts were gone, and the old woman swept again."
)

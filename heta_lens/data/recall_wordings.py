"""More wordings of the facts and questions of `heta_lens.data.recall`, in words that the demo model knows.

It was not trained on these wordings, and answers them like those it was trained on; each was chosen by its answers on
the dev split (``benchmarks/demo_model`` has those on the test split). A story has one wording throughout, so no two of
these templates share a wording of a fact or of a question, and templates are independent.
"""

WORDINGS = (
    ("{who} {verb} the {what} in the {place} .", "Claim : {who} put the {what} in the"),
    (
        "The {what} was {verb} in the {place} by {who} .",
        "Question : Where was the {what} put that {who} had ? Answer : in the",
    ),
    ("The {what} of {who} was {verb} in the {place} .", "Claim : It was {who} that put the {what} in the"),
    ("In the {place} {who} {verb} the {what} .", "Question : Where was the {what} of {who} kept ? Answer : in the"),
    (
        "{who} had a {what} and {verb} it in the {place} .",
        "Question : Where is the {what} put by {who} ? Answer : in the",
    ),
    ("The {what} that {who} {verb} was in the {place} .", "The {what} of {who} was put in the"),
    (
        "It was {who} that {verb} the {what} in the {place} .",
        "Question : Where was the {what} put by {who} ? Answer : in the",
    ),
    (
        "It was the {what} of {who} that was {verb} in the {place} .",
        "Question : Where was a {what} put by {who} ? Answer : in the",
    ),
    (
        "The {what} that {who} had was {verb} in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : {who} put the {what} in the",
    ),
    ("{who} liked the {what} and {verb} it in the {place} .", "{who} put the {what} in the"),
    (
        "{who} was there and {verb} the {what} in the {place} .",
        "Where was the {what} put by {who} ? {who} put it in the",
    ),
    ("{who} did put the {what} in the {place} .", "True : {who} put the {what} in the"),
    ("It is true that the {what} of {who} was {verb} in the {place} .", "Answer : {who} put the {what} in the"),
    ("It was the {what} that {who} {verb} in the {place} .", "Where did {who} put the {what} ? {who} put it in the"),
    (
        "{who} had a {what} that was {verb} in the {place} .",
        "Question : Where was the {what} that {who} left ? Answer : in the",
    ),
    ("It is in the {place} that {who} {verb} the {what} .", "It is true that {who} put the {what} in the"),
    ("It is true that {who} {verb} the {what} in the {place} .", "It was {who} that put the {what} in the"),
    (
        "It is true that the {what} was {verb} in the {place} by {who} .",
        "Question : Where had {who} put the {what} ? Answer : in the",
    ),
    (
        "The {colour} {what} of {who} was {verb} in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : The {what} that {who} put is in the",
    ),
    (
        "{who} {verb} the {what} in the {place} that {time} .",
        "Question : Where was it that {who} left the {what} ? Answer : in the",
    ),
    (
        "{who} {verb} the {what} in the {place} and {action} .",
        "Question : Where did {who} put the {what} ? Answer : The {what} of {who} is in the",
    ),
    (
        "{who} {verb} the {what} in the {place} and was {mood} .",
        "Question : Where did {who} put the {what} ? Answer : {who} left it in the",
    ),
    (
        "{who} {verb} the {what} in the {place} and {action} all {time} .",
        "Where was the {what} of {who} put ? Answer : in the",
    ),
    (
        "{who} {action} all {time} and {verb} the {what} in the {place} .",
        "Where was the {what} put by {who} ? Answer : in the",
    ),
    (
        "The {what} of {who} was {verb} in the {place} that {time} .",
        "Question : Where was the {what} stored by {who} ? Answer : in the",
    ),
    (
        "{who} had a {what} and {verb} it in the {place} that {time} .",
        "Question : Where was the {what} that {who} put ? Answer : in the",
    ),
    (
        "The {time} was {sky} and {who} {verb} the {what} in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : {who} put it in the",
    ),
    ("It was a {sky} {time} and {who} {verb} the {what} in the {place} .", "Claim : The {what} of {who} is in the"),
    (
        "It was {sky} that {time} and {who} {verb} the {what} in the {place} .",
        "Where did {who} put the {what} ? in the",
    ),
    (
        "It was a {sky} {time} and the {what} of {who} was {verb} in the {place} .",
        "Question : Where did {who} put the {what} ? in the",
    ),
    ("In the {time} {who} {verb} the {what} in the {place} .", "The {what} put by {who} is in the"),
    (
        "In the {time} the {what} of {who} was {verb} in the {place} .",
        "Answer : It was {who} that put the {what} in the",
    ),
    (
        "{who} talked about the {what} and {verb} it in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : in the",
    ),
    (
        "It was the {colour} {what} that {who} {verb} in the {place} .",
        "Question : Where was the {what} of {who} put ? Answer : The {what} of {who} was put in the",
    ),
    ("It was a {what} that {who} {verb} in the {place} .", "It is true that the {what} of {who} is in the"),
    (
        "It is true that {who} had a {what} and {verb} it in the {place} .",
        "Question : Where was the {what} of {who} put ? Answer : in the",
    ),
    ("It is true that in the {place} {who} {verb} the {what} .", "Answer : The {what} of {who} is in the"),
    (
        "It is true that it was {who} that {verb} the {what} in the {place} .",
        "Question : Where was it that {who} put the {what} ? Answer : in the",
    ),
    (
        "It is true that the {what} {who} had was {verb} in the {place} .",
        "Question : Where was the {what} that was put by {who} ? Answer : in the",
    ),
    (
        "{who} {action} that {time} and {verb} the {what} in the {place} .",
        "Where did {who} put the {what} ? Answer : in the",
    ),
    (
        "{who} had {verb} the {what} in the {place} .",
        "Question : Where was the {what} put by {who} ? Answer : {who} put the {what} in the",
    ),
    (
        "{who} was {mood} and {verb} the {what} in the {place} .",
        "Question : Where was the {what} of {who} put ? in the",
    ),
    (
        "It was a {sky} {time} and the {what} was {verb} in the {place} by {who} .",
        "Question : Where was the {what} put by {who} ? in the",
    ),
    (
        "In the {time} the {what} was {verb} in the {place} by {who} .",
        "Question : {who} put the {what} ? Answer : in the",
    ),
    (
        "The {what} that {who} {verb} in the {place} was {colour} .",
        "Question : Where is the {what} of {who} stored ? Answer : in the",
    ),
    (
        "{who} {action} and {verb} the {what} in the {place} .",
        "Question : Where is the {what} {who} put ? Answer : in the",
    ),
    ("{who} looked for the {what} and {verb} it in the {place} .", "The {what} that {who} put is in the"),
    (
        "The {colour} {what} was {verb} in the {place} by {who} .",
        "Question : Where did {who} put that {what} ? Answer : in the",
    ),
    ("The {what} of {who} was in the {place} .", "Claim : {who} had the {what} in the"),
    ("In the {place} {who} had a {what} .", "Question : Where is the {what} of {who} ? Answer : in the"),
    ("{who} had a {what} in the {place} .", "The {what} that {who} had is in the"),
    ("The {what} of {who} stands in the {place} .", "Question : Where was the {what} {who} had ? Answer : in the"),
    ("{who} had a {what} in the {place} that {time} .", "Where was the {what} of {who} ? in the"),
    (
        "The {time} was {sky} and {who} had a {what} in the {place} .",
        "Question : Where is that {what} of {who} ? Answer : in the",
    ),
    (
        "It was a {sky} {time} and {who} had a {what} in the {place} .",
        "Question : Where is the {what} of {who} ? Answer : The {what} of {who} is in the",
    ),
    (
        "In the {time} {who} had a {what} in the {place} .",
        "Question : Where stands the {what} of {who} ? Answer : in the",
    ),
    ("The {what} that {who} had was in the {place} .", "The {what} of {who} was in the"),
    ("It was the {what} of {who} that was in the {place} .", "Question : The {what} of {who} ? Answer : in the"),
    (
        "It was {who} that had a {what} in the {place} .",
        "Question : Where is the {what} that {who} had ? Answer : in the",
    ),
    (
        "It is true that {who} had a {what} in the {place} .",
        "Question : Where was the {what} of {who} ? Answer : in the",
    ),
    ("It is true that the {what} of {who} was in the {place} .", "Where is the {what} of {who} ? It is in the"),
    ("{who} was {mood} and had a {what} in the {place} .", "Where is the {what} of {who} ? Answer : in the"),
    ("The {what} of {who} was in the {place} that {time} .", "True : The {what} of {who} is in the"),
    ("The {what} of {who} was in the {place} all {time} .", "{who} had the {what} in the"),
)
"""How each story tells its facts and, with one hop, asks for one."""

LOCATIONS = (
    "The {place} is in the {room} .",
    "The {place} stands in the {room} .",
    "In the {room} there is the {place} .",
    "The {place} was in the {room} .",
    "It is true that the {place} is in the {room} .",
    "The {place} stands there in the {room} .",
)

ROOM_QUESTIONS = (
    "Question : In which room is the {what} of {who} ? Answer : in the",
    "Question : Which room holds the {what} of {who} ? Answer : in the",
    "Question : In which room was the {what} of {who} ? Answer : in the",
    "Question : In which room was the {what} of {who} put ? Answer : in the",
    "Question : In which room is the {what} that {who} put ? Answer : in the",
    "Question : In which room is the {what} {who} put ? Answer : in the",
    "Question : In which room is the {what} that {who} had ? Answer : in the",
    "Question : In which room did {who} put the {what} ? Answer : in the",
    "Question : In which room was the {what} put by {who} ? Answer : in the",
    "Question : In which room is the {what} put by {who} ? Answer : in the",
    "Question : In which room stands the {what} of {who} ? Answer : in the",
    "Question : Which room holds the {what} that {who} put ? Answer : in the",
    "Question : Which room holds the {what} {who} had ? Answer : in the",
    "Question : Which room holds the {what} put by {who} ? Answer : in the",
    "Question : Which room had the {what} of {who} ? Answer : in the",
    "Question : In which room is that {what} of {who} ? Answer : in the",
    "Question : In which room is the {what} of {who} kept ? Answer : in the",
    "Question : In which room is the {what} of {who} stored ? Answer : in the",
)

CLAIMS = (
    "Claim : The {what} of {who} is in the {place} . True or false ? Answer :",
    "The {what} of {who} is in the {place} . True or false ? Answer :",
    "Claim : The {what} of {who} stands in the {place} . True or false ? Answer :",
    "Question : The {what} of {who} is in the {place} . True or false ? Answer :",
)
